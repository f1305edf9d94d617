"""What a project needs to run on one machine: an embedded Kafka broker and a generator of clicks."""

"""What Penstock asks a Kafka broker: is it there, does the topic exist, which offsets does it hold."""

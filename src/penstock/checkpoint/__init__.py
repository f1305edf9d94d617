"""What Spark's checkpoints and Delta's logs say, read as files: no Spark, no JVM."""

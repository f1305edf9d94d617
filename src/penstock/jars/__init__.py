"""Java and the jars: what Spark and the embedded broker run on.

Rules
- `jars.lock` names every jar with its SHA-256; nothing that is not in it reaches a class path.
- Jars land in a user cache that all checkouts share; a file gets its final name only after its checksum was right.
- A checksum is computed once, at the fetch. Afterwards size and modification time vouch for the file.
"""

from penstock.jars.fetch import cache_dir, fetch
from penstock.jars.java import Java, java
from penstock.jars.lock import Group, Jar, load_lock

__all__ = ["Group", "Jar", "Java", "cache_dir", "fetch", "java", "load_lock"]

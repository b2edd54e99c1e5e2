"""One region: options, search, plan, and the entry that the disk cache keeps."""

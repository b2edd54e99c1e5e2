"""The laws, grouped by the root of the left side: nothing but laws."""

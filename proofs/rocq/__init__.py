"""The laws as theorems of Rocq: statements written from the records, proofs by tactics, and the audit of both."""

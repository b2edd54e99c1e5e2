"""Why the laws hold: obligations derived from the rule records, provers, and the ledger of verdicts."""

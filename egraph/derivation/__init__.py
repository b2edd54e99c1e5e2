"""Why two terms are equal: normal forms, derivations, certificates, and the ledger of proved rules."""

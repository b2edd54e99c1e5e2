"""A report as a page of HTML: cards, pictures, derivations."""

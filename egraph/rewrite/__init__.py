"""What a rule is: guards, patterns, matching, and the decorator `@rule`."""

"""From charged time to findings: rules, checks, confidence, runbooks."""

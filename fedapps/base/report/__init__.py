"""What sections of a report are made of: names of metrics, estimates, tables, figures and markup."""

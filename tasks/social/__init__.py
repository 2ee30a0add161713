"""How much a robot disturbs the people around it (SocNav1), learnt from one rater after another."""

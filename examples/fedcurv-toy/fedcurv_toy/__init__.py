"""fedcurv-toy: FedCurv with a NumPy client that exchanges its records."""

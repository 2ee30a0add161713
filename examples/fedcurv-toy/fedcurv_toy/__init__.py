"""fedcurv-toy: FedCurv with a NumPy client that speaks its records."""

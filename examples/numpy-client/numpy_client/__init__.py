"""numpy-client: A NumPyClient of your own on a task of fedapps."""

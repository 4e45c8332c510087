"""Deploy on a Kubernetes cluster: what kubectl applies, shows, logs and deletes."""

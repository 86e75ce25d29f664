"""Recipe and nodes → what a cluster needs to offer their GPUs: manifests, Helm values, node labels. Pure."""

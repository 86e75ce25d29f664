"""From a recipe and nodes to what a cluster needs to offer their GPUs: manifests, Helm values, node labels. Pure."""

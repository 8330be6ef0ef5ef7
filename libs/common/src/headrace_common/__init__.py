"""What all members of Headrace share: the record batch, errors, the cluster image, RPC plumbing, the runtime."""

"""The admin service: administration of a cluster over REST and gRPC. It keeps nothing."""

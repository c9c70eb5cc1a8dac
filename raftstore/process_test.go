package raftstore

const replicaEnv = "RAFTSTORE_TEST_REPLICA"

func runReplica() int { return 0 }

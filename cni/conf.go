package cni

// A Conf is the network configuration of a call.
type Conf struct{}

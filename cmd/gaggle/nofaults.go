//go:build !faults

package main

import "github.com/gaggle-cni/gaggle/node"

// withFaults changes nothing: faults are for builds with the tag faults.
func withFaults(o node.Options) node.Options { return o }

// beforeChange is nothing, likewise.
func beforeChange() func(op string) error { return nil }

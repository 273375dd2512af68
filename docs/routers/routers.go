// Package routers holds the example configurations of upstream routers, so that the tests run the very files that the
// documentation shows.
package routers

import _ "embed" // for the files

// The examples. README.md beside them says what is in them and why.
var (
	//go:embed bird.conf
	BIRD string
	//go:embed frr.conf
	FRR string
)

package wire

import (
	"fmt"
	"strings"
)

// CheckName checks a container id or network name (CNI spec 1.1.0 sections 1 and 2): a letter or digit, then letters,
// digits, "_", "." and "-". Such a name cannot leave a directory or forge a key.
func CheckName(name string) error {
	if name == "" {
		return fmt.Errorf("is empty")
	}
	if len(name) > 255 {
		return fmt.Errorf("has %d characters: want 255 at most", len(name))
	}
	for i, c := range []byte(name) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return fmt.Errorf("%q: want a letter or digit first, then letters, digits, _, . and -", name)
		}
	}
	return nil
}

// CheckIfName checks the name of an interface as the kernel does (net/core/dev.c, dev_valid_name).
func CheckIfName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty")
	case len(name) > 15:
		return fmt.Errorf("%q: has %d characters, want 15 at most", name, len(name))
	case name == "all" || name == "default" || strings.Contains(name, "%"):
		// The kernel's settings have the first two for all links, and it takes %d for a number of its choice.
		return fmt.Errorf("%q: cannot be the name of a container's interface", name)
	case name == "." || name == "..":
		return fmt.Errorf("%q: not an interface name", name)
	case strings.ContainsAny(name, "/: \t\n\v\f\r"):
		return fmt.Errorf("%q: an interface name has no slash, colon or white space", name)
	}
	return nil
}

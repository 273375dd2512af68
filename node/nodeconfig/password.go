package nodeconfig

import (
	"fmt"
	"strings"

	"github.com/gaggle-cni/gaggle/bgp"
	"github.com/gaggle-cni/gaggle/node/api/v1alpha1"
)

// password reads the key of TCP MD5. Without it there must be no session. A file that cannot be read is a problem, as whoever
// wrote its name is there when the process starts. A Secret comes and goes while nodes work, and concerns its peer alone: ok
// tells whether the peer can be used.
func (c *converter) password(path, peer string, raw *v1alpha1.Password) (key bgp.Secret, ok bool) {
	switch {
	case raw == nil:
		return "", true
	case raw.SecretRef != nil && raw.File != "":
		c.problem(path+".secretRef", "file is there too; choose one")
	case raw.SecretRef != nil:
		return c.passwordSecret(path+".secretRef", peer, *raw.SecretRef)
	case raw.File != "":
		return c.passwordFile(path+".file", raw.File), true
	default:
		c.problem(path+".file", "is missing; want the path of a file that holds the password")
	}
	return "", false
}

func (c *converter) passwordFile(path, name string) bgp.Secret {
	data, err := c.o.ReadFile(name)
	if err != nil {
		c.problem(path, "%v", err)
		return ""
	}
	key, err := passwordText(data)
	if err != nil {
		c.problem(path, "%s: %v", name, err)
	}
	return key
}

func (c *converter) passwordSecret(path, peer string, ref v1alpha1.SecretRef) (key bgp.Secret, ok bool) {
	if ref.Name == "" || ref.Key == "" {
		c.problem(path, "want the name of a Secret and a key of it, as in {name: tor-a, key: md5}")
		return "", false
	}
	if c.o.Cluster == nil {
		c.problem(path, "needs Kubernetes, and this process runs without; put the password into a file")
		return "", false
	}
	s, known := c.o.Cluster.Secrets[SecretRef(ref).String()]
	var err error
	switch {
	case !known:
		s.Problem = fmt.Sprintf("Secret %s has not been read yet", ref.Name)
	case s.Problem == "":
		if key, err = passwordText([]byte(s.Value)); err != nil {
			s.Problem = fmt.Sprintf("key %q of Secret %s: %v", ref.Key, ref.Name, err)
		}
	}
	if s.Problem != "" {
		c.warnings = append(c.warnings, c.at(path, "%s; peer %q is out of service, as there is no session without its password", s.Problem, peer))
		return "", false
	}
	return key, true
}

func passwordText(data []byte) (bgp.Secret, error) {
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" || len(text) > maxPassword {
		return "", fmt.Errorf("holds %d characters; want 1 to %d", len(text), maxPassword)
	}
	return bgp.Secret(text), nil
}

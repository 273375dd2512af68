package kube

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
)

func TestOptions(t *testing.T) {
	got, err := Options{}.withDefaults()
	want := Options{Nodes: 1, ToRs: 1, Router: "bird", Containerd: 1}
	if err != nil || got != want {
		t.Errorf("withDefaults() = %+v, %v; want %+v", got, err, want)
	}
	_, err = Options{Nodes: 81, ToRs: 3, Router: "cisco", Containerd: 3}.withDefaults()
	for _, problem := range []string{"nodes: 81", "ToRs: 3", `router "cisco"`, "containerd 3"} {
		if err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("withDefaults() = %v, want all problems, %q too", err, problem)
		}
	}
}

// A version is written in one place, the module's file, and programs are kept under a name that changes with it.
func TestSources(t *testing.T) {
	for name, s := range map[string]source{"kubernetes": kubernetesSource(), "containerd": containerdSource()} {
		if !strings.HasPrefix(s.release(), "v") || !strings.Contains(s.key(), s.release()) {
			t.Errorf("%s: release %q, key %q", name, s.release(), s.key())
		}
		other := s
		other.mod = []byte(strings.Replace(string(s.mod), s.release(), "v9.9.9", 1))
		if other.key() == s.key() {
			t.Errorf("%s: the key %q stays with another version", name, s.key())
		}
	}
	if got, want := kubernetesSource().linkFlags(), ".gitMinor=36"; !strings.Contains(got, want) {
		t.Errorf("linkFlags() = %q, want %q in it", got, want)
	}
}

func TestRouterConfigs(t *testing.T) {
	for name, text := range map[string]string{
		"bird": fill(birdConfig, uplinkOf(2)), "frr": fill(frrConfig, uplinkOf(2)), "core": coreConfig(2),
	} {
		if strings.Contains(text, "{{") || strings.Contains(text, "<no value>") || !strings.Contains(text, "203.0.113.") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

func TestAuthority(t *testing.T) {
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ca.client("system:node:node1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(p.cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.pem)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("Verify() = %v", err)
	}
	if cert.Subject.CommonName != "system:node:node1" || cert.Subject.Organization[0] != "system:nodes" {
		t.Errorf("subject %v", cert.Subject)
	}
}

package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An authority issues the cluster's certificates.
type authority struct {
	cert *x509.Certificate
	pem  []byte
	key  *ecdsa.PrivateKey
}

// A pair is a certificate and its key, both as PEM.
type pair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: "gaggle-kube"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert, pemBlock("CERTIFICATE", der), key}, nil
}

// certificate is what all certificates have; they live longer than any test.
func certificate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// client issues a certificate for a user of the API, with the groups.
func (a *authority) client(user string, groups ...string) (pair, error) {
	template := certificate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// server issues a certificate for a server with these names and addresses.
func (a *authority) server(names, addrs []string) (pair, error) {
	template := certificate(pkix.Name{CommonName: "server"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = names
	for _, addr := range addrs {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(addr))
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("issue a certificate for %s: %w", template.Subject, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{pemBlock("CERTIFICATE", der), pemBlock("EC PRIVATE KEY", keyDER)}, nil
}

// serviceAccountKeys make and check the tokens of service accounts.
func serviceAccountKeys() (p pair, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return p, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return p, err
	}
	return pair{pemBlock("PUBLIC KEY", public), pemBlock("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))}, nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// kubeconfig is what a client needs to know of the API server.
func (a *authority) kubeconfig(user string, p pair) []byte {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: gaggle-kube, cluster: {server: "https://%s:6443", certificate-authority-data: %s}}]
users: [{name: %q, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: gaggle-kube, context: {cluster: gaggle-kube, user: %q}}]
current-context: gaggle-kube
`, APIServer, encode(a.pem), user, encode(p.cert), encode(p.key), user)
}

// writeKeys makes all certificates and kubeconfigs.
func (c *Cluster) writeKeys() error {
	if err := os.MkdirAll(c.etc(""), 0o755); err != nil {
		return err
	}
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	server, err := ca.server(
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		[]string{"127.0.0.1", "::1", APIServer, apiServer6, "10.96.0.1", "2001:db8:96::1"},
	)
	if err != nil {
		return err
	}
	accounts, err := serviceAccountKeys()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": ca.pem, "server.crt": server.cert, "server.key": server.key, "accounts.pub": accounts.cert, "accounts.key": accounts.key,
	}
	users := map[string][]string{ // files of users to the users and their groups
		"admin": {"admin", "system:masters"}, "scheduler": {"system:kube-scheduler"}, "kube-proxy": {"system:kube-proxy"},
	}
	for _, n := range c.Nodes {
		users[n.Name] = []string{"system:node:" + n.Name, "system:nodes"}
	}
	for file, user := range users {
		p, err := ca.client(user[0], user[1:]...)
		if err != nil {
			return err
		}
		files[file+".crt"], files[file+".key"] = p.cert, p.key
		files[file+".kubeconfig"] = ca.kubeconfig(user[0], p)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(c.etc(""), name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

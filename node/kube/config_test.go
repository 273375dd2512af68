package kube

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gaggle-cni/gaggle/node/nodeconfig"
)

// convert makes the configuration as the node process does.
func convert(c Config) (nodeconfig.Result, error) {
	return c.Merged.Convert(nodeconfig.Options{Node: "node1", Cluster: &c.Cluster})
}

func TestConfig(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, ownPath+"all", `{"metadata": {"uid": "1", "managedFields": []}, "spec": {"defaults": {"mtu": 1400}}}`)
	api.put(t, ownPath+"rack-2", `{"spec": {"nodeSelector": {"matchLabels": {"rack": "2"}}, "priority": 5, "defaults": {"mtu": 1500}}}`)
	w := newWorld(t, api).run(t)
	c, err := w.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Generation != 1 || c.Merged.Origins()["spec.defaults.mtu"] != "all" {
		t.Errorf("Config() = %+v", c)
	}
	r, err := convert(c)
	if err != nil || r.Config.MTU != 1400 || len(r.Config.Pools) != 2 {
		t.Errorf("Convert() = %+v, %v", r, err)
	}
	mtu := func() int { r, _ := convert(w.Config()); return r.Config.MTU }

	t.Run("a label of the node", func(t *testing.T) {
		api.put(t, nodePath, strings.Replace(aNode, `"rack": "1"`, `"rack": "2"`, 1))
		eventually(t, "the other rack's", func() bool { return mtu() == 1500 })
	})
	t.Run("a document that is not for this node", func(t *testing.T) {
		before := w.Config().Generation
		api.put(t, ownPath+"rack-3", `{"spec": {"nodeSelector": {"matchLabels": {"rack": "3"}}, "defaults": {"mtu": 1}}}`)
		api.put(t, ownPath+"rack-2", `{"spec": {"nodeSelector": {"matchLabels": {"rack": "2"}}, "priority": 5, "defaults": {"mtu": 1600}}}`)
		eventually(t, "the next change", func() bool { return mtu() == 1600 })
		if got := w.Config().Generation; got != before+1 {
			t.Errorf("generation %d, then %d", before, got)
		}
	})
	t.Run("a document that cannot be read", func(t *testing.T) {
		before := w.Config().Generation
		api.put(t, ownPath+"bad", `{"spec": {"nodeSelector": {"matchLabel": {"rack": "2"}}}}`)
		eventually(t, "its error", func() bool { return w.Config().Err != nil })
		if c := w.Config(); c.Generation != before || mtu() != 1600 || !strings.Contains(c.Err.Error(), "NodeConfig bad: spec.nodeSelector.matchLabel") {
			t.Errorf("Config() = %+v", c)
		}
		api.remove(ownPath + "bad")
		eventually(t, "its end", func() bool { return w.Config().Err == nil })
	})
	t.Run("a document that goes", func(t *testing.T) {
		api.remove(ownPath + "rack-2")
		eventually(t, "the other one's", func() bool { return mtu() == 1400 })
	})
	t.Run("a node that goes", func(t *testing.T) {
		api.remove(nodePath)
		eventually(t, "no node", func() bool { return errors.Is(w.Config().Err, ErrNoNode) })
		if mtu() != 1400 {
			t.Error("the last configuration does not remain")
		}
	})
	if n := w.count(ConfigChanged); n < 6 {
		t.Errorf("told of %d changes", n)
	}
	if writes := api.written(); len(writes) > 0 {
		t.Errorf("writes: %v", writes)
	}
}

// Pod CIDRs may be assigned later than the node process starts.
func TestPodCIDRsComeLater(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, `{"metadata": {"uid": "n1"}}`)
	w := newWorld(t, api).run(t)
	c, err := w.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := convert(c); !errors.Is(err, nodeconfig.ErrNoPodCIDRs) {
		t.Errorf("Convert() = %v", err)
	}
	api.put(t, nodePath, aNode)
	eventually(t, "pools", func() bool { _, err := convert(w.Config()); return err == nil })
}

// The definition of NodeConfigs may be installed later too; until then nothing is known, and nothing is made up.
func TestDefinitionComesLater(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.setRefusal("nodeconfigs", 404)
	w := newWorld(t, api).run(t)
	eventually(t, "trouble", func() bool { return w.Health().Err != nil })
	if c := w.Config(); c.Generation != 0 || c.Err == nil {
		t.Errorf("Config() = %+v", c)
	}
	api.put(t, ownPath+"all", `{"spec": {"defaults": {"mtu": 1400}}}`)
	api.setRefusal("nodeconfigs", 0)
	if c, err := w.Await(t.Context()); err != nil || c.Merged.Names[0] != "all" {
		t.Errorf("Await() = %+v, %v", c, err)
	}
	if n := strings.Count(w.log.String(), "CustomResourceDefinition"); n != 1 {
		t.Errorf("told %d times:\n%s", n, w.log)
	}
}

const withSecret = `{"spec": {"bgp": {"asn": 64512, "peers": [
	{"name": "a", "address": "192.0.2.1", "asn": 64500, "password": {"secretRef": {"name": "tor", "key": "md5"}}},
	{"name": "b", "address": "192.0.2.2", "asn": 64500}]}}}`

// A secret that is not there takes its peer out of service; it is watched, and alone.
func TestSecret(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, ownPath+"all", withSecret)
	api.put(t, "api/v1/namespaces/gaggle-system/secrets/foreign", `{"data": {"md5": "eA=="}}`)
	w := newWorld(t, api).run(t)
	c, err := w.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := convert(c)
	if err != nil || len(r.Config.BGP.Peers) != 1 || !strings.Contains(r.Warnings.Error(), "there is no Secret tor in namespace gaggle-system; peer \"a\"") {
		t.Errorf("Convert() = %+v, %v", r, err)
	}
	tests := []struct{ name, object, warning string }{
		{"another key", `{"data": {"other": "eA=="}}`, `Secret tor has no key "md5"`},
		{"there", `{"data": {"md5": "czNjcmV0"}}`, ""},
		{"empty", `{"data": {"md5": ""}}`, "holds 0 characters"},
		{"another value", `{"data": {"md5": "eA=="}}`, ""},
		{"gone", "", "there is no Secret tor"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.object == "" {
				api.remove(secret)
			} else {
				api.put(t, secret, tt.object)
			}
			eventually(t, tt.name, func() bool {
				r, err := convert(w.Config())
				if tt.warning == "" {
					return err == nil && len(r.Warnings) == 0 && len(r.Config.BGP.Peers) == 2
				}
				return err == nil && strings.Contains(r.Warnings.Error(), tt.warning) && len(r.Config.BGP.Peers) == 1
			})
		})
	}
	if strings.Contains(fmt.Sprintf("%+v %s", w.Config().Cluster, w.log), "s3cret") {
		t.Error("the secret was printed")
	}
	t.Run("not referred to any more", func(t *testing.T) {
		api.put(t, ownPath+"all", `{"spec": {}}`)
		eventually(t, "no watch", func() bool {
			api.mu.Lock()
			defer api.mu.Unlock()
			for _, filter := range api.watchers {
				if strings.Contains(filter, "secrets") {
					return false
				}
			}
			return true
		})
	})
}

// Secrets that may not be read are as good as missing, and do not hold anything up.
func TestSecretRefused(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, ownPath+"all", withSecret)
	api.setRefusal("secrets", 403)
	w := newWorld(t, api).run(t)
	c, err := w.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, err := convert(c); err != nil || !strings.Contains(r.Warnings.Error(), "cannot be read: the API server refuses") {
		t.Errorf("Convert() = %+v, %v", r, err)
	}
}

// Namespaces are watched while a selector is in use, and only then.
func TestNamespaceSelector(t *testing.T) {
	api := newAPIServer(t)
	api.put(t, nodePath, aNode)
	api.put(t, "api/v1/namespaces/edge", `{"metadata": {"labels": {"edge": "true"}}}`)
	api.put(t, "api/v1/namespaces/shop", `{}`)
	api.put(t, ownPath+"all", `{"spec": {"grants": [{"namespaces": ["x"], "prefixes": ["203.0.113.0/28"], "uses": ["Anycast"]}]}}`)
	w := newWorld(t, api).run(t)
	if _, err := w.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	watched := func() bool {
		api.mu.Lock()
		defer api.mu.Unlock()
		for _, filter := range api.watchers {
			if filter == "api/v1/namespaces?" {
				return true
			}
		}
		return false
	}
	if watched() {
		t.Error("namespaces are watched without need")
	}
	granted := func() string {
		r, err := convert(w.Config())
		if err != nil || len(r.Config.Grants) == 0 {
			return fmt.Sprint(err)
		}
		return strings.Join(r.Config.Grants[0].Namespaces, " ")
	}
	api.put(t, ownPath+"all", `{"spec": {"grants": [{"namespaceSelector": {"matchLabels": {"edge": "true"}}, "prefixes": ["203.0.113.0/28"], "uses": ["Anycast"]}]}}`)
	eventually(t, "one namespace", func() bool { return granted() == "edge" })
	api.put(t, "api/v1/namespaces/shop", `{"metadata": {"labels": {"edge": "true"}}}`)
	eventually(t, "two namespaces", func() bool { return granted() == "edge shop" })
	api.put(t, "api/v1/namespaces/edge", `{}`)
	eventually(t, "the other one", func() bool { return granted() == "shop" })
	api.put(t, ownPath+"all", `{"spec": {}}`)
	eventually(t, "no watch", func() bool { return !watched() })
}

// A cluster's own facts are compared whole: nothing that did not change is told of.
func TestSameWish(t *testing.T) {
	a := Config{Cluster: nodeconfig.Cluster{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}, Merged: nodeconfig.Merge(nil)}
	b := Config{Cluster: nodeconfig.Cluster{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}, Merged: nodeconfig.Merge(nil)}
	if !sameWish(a, b) {
		t.Error("the same is different")
	}
	b.Cluster.PodCIDRs = nil
	if sameWish(a, b) {
		t.Error("what is different is the same")
	}
}

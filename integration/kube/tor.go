package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"

	_ "embed" // for the configurations

	"github.com/gaggle-cni/gaggle/integration/lab"
)

// The routers' configurations. The ToRs take sessions from any node and everything that it says, so that tests see what that is.
var (
	//go:embed templates/bird.conf
	birdConfig string
	//go:embed templates/frr.conf
	frrConfig string
	//go:embed templates/core.conf
	coreBIRDConfig string
)

// A ToR is a router of the rack.
type ToR struct {
	*lab.Router // Ask is its own command line: words for birdc, one string for vtysh
}

// Exec runs a command on the router, such as ip, and returns what it prints.
func (t *ToR) Exec(ctx context.Context, args ...string) (string, error) {
	return t.NS.Exec(ctx, args...)
}

// addToR makes router i, between the core and the rack.
func (c *Cluster) addToR(ctx context.Context, core, rack lab.NS, i int) error {
	name := torName(i)
	ns, err := c.router(ctx, name)
	if err != nil {
		return err
	}
	if err := errors.Join(
		connect(ctx, core, netLink{name, uplink4(i, 2) + "/30", uplink6(i, 2) + "/64"},
			ns, netLink{"core", uplink4(i, 1) + "/30", uplink6(i, 1) + "/64"}),
		connect(ctx, rack, netLink{name: name}, ns, netLink{"rack", ToR4(i) + "/24", ToR6(i) + "/64"}),
		ipAll(ctx, rack, "link set "+name+" master rack"),
	); err != nil {
		return err
	}
	text := birdConfig
	if c.o.Router == "frr" {
		text = frrConfig
	}
	r, err := c.lab.StartRouterOn(ctx, ns, name, c.o.Router, fill(text, uplinkOf(i)))
	if err != nil {
		return err
	}
	c.ToRs = append(c.ToRs, &ToR{r})
	return nil
}

func torName(i int) string { return fmt.Sprintf("tor%d", i) }

// An uplink is what the configurations of its two ends need to know.
type uplink struct{ Name, ID, ToR4, ToR6, Core4, Core6 string }

func uplinkOf(i int) uplink {
	return uplink{torName(i), ToR4(i), uplink4(i, 1), uplink6(i, 1), uplink4(i, 2), uplink6(i, 2)}
}

func coreConfig(tors int) string {
	uplinks := make([]uplink, tors)
	for i := range uplinks {
		uplinks[i] = uplinkOf(i + 1)
	}
	return fill(coreBIRDConfig, uplinks)
}

// fill executes a template of ours, which has no mistakes.
func fill(text string, data any) string {
	var b strings.Builder
	if err := template.Must(template.New("").Parse(text)).Execute(&b, data); err != nil {
		panic("kube: " + err.Error())
	}
	return b.String()
}

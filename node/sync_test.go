package node_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gaggle-cni/gaggle/node"
	"github.com/gaggle-cni/gaggle/node/nodetest"
)

type routeTarget = nodetest.Target[netip.Prefix, node.Route]

var (
	pfxA   = netip.MustParsePrefix("10.0.0.1/32")
	pfxB   = netip.MustParsePrefix("10.0.0.2/32")
	routeA = node.Route{Kind: node.RouteHost, Link: "a"}
	routeB = node.Route{Kind: node.RouteHost, Link: "b"}
)

type routes = map[netip.Prefix]node.Route

func TestSyncer(t *testing.T) {
	target := &routeTarget{}
	target.Set(routes{pfxB: routeB})
	s := node.NewSyncer("route", target)
	ctx := t.Context()

	if err := s.Ensure(ctx, routes{pfxA: routeA}).Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(routes{pfxA: routeA, pfxB: routeB}, target.Items(), cmpOptions()...); diff != "" {
		t.Errorf("after Ensure (-want +got):\n%s", diff)
	}
	if err := s.Prune(ctx, routes{pfxA: routeA}).Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(routes{pfxA: routeA}, target.Items(), cmpOptions()...); diff != "" {
		t.Errorf("after Prune (-want +got):\n%s", diff)
	}
	// A different value is put, whatever field differs (what is compared is the whole value).
	changed := routeA
	changed.Source = netip.MustParseAddr("192.0.2.1")
	s.Ensure(ctx, routes{pfxA: changed})
	if got := target.Items()[pfxA]; got != changed {
		t.Errorf("got %+v, want %+v", got, changed)
	}
}

func TestSyncerDoesNoIOWhenNothingChanges(t *testing.T) {
	calls := 0
	target := &routeTarget{Fail: func(string, netip.Prefix) error { calls++; return nil }}
	s := node.NewSyncer("route", target)
	want := routes{pfxA: routeA}
	s.Ensure(t.Context(), want)
	s.Prune(t.Context(), want)
	calls = 0
	s.Ensure(t.Context(), want)
	s.Prune(t.Context(), want)
	if calls != 0 {
		t.Errorf("%d calls, want none", calls)
	}
	s.Doubt()
	s.Ensure(t.Context(), want)
	if calls != 1 {
		t.Errorf("%d calls after Doubt, want one List", calls)
	}
}

func TestSyncerGoesOnAfterFailuresAndRepairs(t *testing.T) {
	boom := errors.New("boom")
	var failing bool
	target := &routeTarget{Fail: func(op string, p netip.Prefix) error {
		if failing && p == pfxA {
			return boom
		}
		return nil
	}}
	s := node.NewSyncer("route", target)
	want := routes{pfxA: routeA, pfxB: routeB}
	failing = true
	failed := s.Ensure(t.Context(), want)
	if len(failed) != 1 || !errors.Is(failed[pfxA], boom) {
		t.Errorf("failures %v, want one for %v", failed, pfxA)
	}
	if _, ok := target.Items()[pfxB]; !ok {
		t.Error("the route after the failed one is not there")
	}
	failing = false
	if err := s.Ensure(t.Context(), want).Err(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, target.Items(), cmpOptions()...); diff != "" {
		t.Errorf("after the repair (-want +got):\n%s", diff)
	}
}

// A failed read is never an empty result (I23).
func TestSyncerNeverActsOnAFailedList(t *testing.T) {
	target := &routeTarget{Fail: func(op string, _ netip.Prefix) error {
		if op == "list" {
			return errors.New("dump interrupted")
		}
		return nil
	}}
	target.Set(routes{pfxB: routeB})
	s := node.NewSyncer("route", target)
	if failed := s.Ensure(t.Context(), routes{pfxA: routeA}); failed[pfxA] == nil {
		t.Error("Ensure() reports no failure")
	}
	s.Prune(t.Context(), routes{})
	if diff := cmp.Diff(routes{pfxB: routeB}, target.Items(), cmpOptions()...); diff != "" {
		t.Errorf("changed on the strength of nothing:\n%s", diff)
	}
}

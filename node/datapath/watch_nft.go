package datapath

import (
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// watchNft calls Options.Changed for what others do to our tables in nf_tables, until done is closed.
func (d *Datapath) watchNft(done <-chan struct{}, drained *sync.WaitGroup, fail func(error)) error {
	s, err := nl.SubscribeAt(d.ns, netns.None(), unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nf_tables: %w", err)
	}
	// Larger than the limit for all: a flush of a large rule set is one burst.
	if err := s.SetReceiveBufferSize(eventBuffer, true); err != nil {
		s.Close()
		return fmt.Errorf("subscribe to nf_tables: %w", err)
	}
	drained.Go(func() { <-done; s.Close() })
	drained.Go(func() {
		for {
			messages, _, err := s.Receive()
			if err != nil {
				fail(fmt.Errorf("events of nf_tables: %w", err))
				return
			}
			for _, m := range messages {
				if m.Header.Pid != d.nft.port.Load() && aboutOurTable(m) {
					d.o.Changed()
				}
			}
		}
	})
	return nil
}

// aboutOurTable reports whether an event is about one of our tables, or about a chain, rule, set or element in it.
func aboutOurTable(m syscall.NetlinkMessage) bool {
	const nfgenmsg = 4 // bytes; the first is the family (linux/netfilter/nfnetlink.h)
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenmsg || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN,
		unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET,
		unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
	default:
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[nfgenmsg:])
	if err != nil {
		return false
	}
	for _, a := range attrs {
		// The table's name has this number in all of these.
		if a.Attr.Type == unix.NFTA_TABLE_NAME {
			name := strings.TrimRight(string(a.Value), "\x00")
			return name == Table || name == MasqueradeTable
		}
	}
	return false
}

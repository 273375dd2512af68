package datapath

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// exprs are a rule in the kernel's terms: each loads something into a register, compares one, or decides. They read like nft's
// own language from left to right.
type exprs []expr.Any

// The registers that are used, of 16 bytes each. A key of two parts lies in both.
const reg1, reg2 = unix.NFT_REG_1, unix.NFT_REG_2

// family compares "meta nfproto".
func (e exprs) family(of netip.Addr) exprs {
	proto := byte(unix.NFPROTO_IPV6)
	if of.Is4() {
		proto = unix.NFPROTO_IPV4
	}
	return append(e, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, equals(proto))
}

// link compares a link's name, as in "iifname @set".
func (e exprs) link(key expr.MetaKey, set *nftables.Set, invert bool) exprs {
	return append(e, &expr.Meta{Key: key, Register: reg1}, lookup(set, invert))
}

// source looks up "iifname . saddr"; family must have been compared.
func (e exprs) source(set *nftables.Set, family netip.Addr) exprs {
	return append(e, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, address(family, false, reg2), lookup(set, false))
}

// within compares the family, and the source or destination address with a prefix.
func (e exprs) within(p netip.Prefix, destination bool) exprs {
	mask := netip.PrefixFrom(allOnes(p.Addr()), p.Bits()).Masked().Addr().AsSlice()
	return append(e.family(p.Addr()),
		address(p.Addr(), destination, reg1),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		equals(p.Masked().Addr().AsSlice()...))
}

// icmp6 compares "meta l4proto icmpv6".
func (e exprs) icmp6() exprs {
	return append(e, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equals(unix.IPPROTO_ICMPV6))
}

// icmp6Type compares "icmpv6 type"; the protocol must have been compared.
func (e exprs) icmp6Type(kind byte) exprs {
	return append(e, &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, equals(kind))
}

// tcpGoingOn compares "tcp flags & (syn | ack) != syn" (RFC 9293 section 3.1).
func (e exprs) tcpGoingOn() exprs {
	const flags, syn, ack = 13, 0x02, 0x10
	return append(e, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equals(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{syn}})
}

func (e exprs) accept() exprs { return append(e, &expr.Verdict{Kind: expr.VerdictAccept}) }
func (e exprs) leave() exprs  { return append(e, &expr.Verdict{Kind: expr.VerdictReturn}) }

// drop counts what it drops.
func (e exprs) drop() exprs { return append(e, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}) }

func equals(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: data} }

func lookup(set *nftables.Set, invert bool) *expr.Lookup {
	return &expr.Lookup{SourceRegister: reg1, SetName: set.Name, SetID: set.ID, Invert: invert}
}

// address loads the source or destination address of the IPv4 header (RFC 791 section 3.1) or the IPv6 header (RFC 8200
// section 3).
func address(family netip.Addr, destination bool, register uint32) *expr.Payload {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}
	if family.Is4() {
		p.Offset, p.Len = 12, 4
	}
	if destination {
		p.Offset += p.Len
	}
	return p
}

// allOnes is the highest address of the family.
func allOnes(family netip.Addr) netip.Addr {
	b := make([]byte, family.BitLen()/8)
	for i := range b {
		b[i] = 0xff
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

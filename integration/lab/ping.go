package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// A Pinger sends ICMP echo requests from a namespace to one address.
type Pinger struct {
	conn *icmp.PacketConn
	to   netip.Addr

	mu      sync.Mutex
	sent    int
	replied map[int]time.Time
}

// NewPinger opens a socket in the namespace.
func NewPinger(from NS, to netip.Addr) (*Pinger, error) {
	network, any4 := "ip6:ipv6-icmp", "::"
	if to.Is4() {
		network, any4 = "ip4:icmp", "0.0.0.0"
	}
	p := &Pinger{to: to, replied: make(map[int]time.Time)}
	err := from.Do(func() (err error) {
		p.conn, err = icmp.ListenPacket(network, any4)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ping %s: %w", to, err)
	}
	return p, nil
}

// Close closes the socket.
func (p *Pinger) Close() error { return p.conn.Close() }

func (p *Pinger) send() error {
	p.mu.Lock()
	p.sent++
	seq := p.sent
	p.mu.Unlock()
	var kind icmp.Type = ipv6.ICMPTypeEchoRequest
	if p.to.Is4() {
		kind = ipv4.ICMPTypeEcho
	}
	msg := icmp.Message{Type: kind, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: seq & 0xffff, Data: []byte("gaggle")}}
	data, err := msg.Marshal(nil)
	if err != nil {
		return err
	}
	_, err = p.conn.WriteTo(data, &net.IPAddr{IP: p.to.AsSlice()})
	return err
}

// receive notes replies until the deadline.
func (p *Pinger) receive(until time.Time, enough func() bool) {
	_ = p.conn.SetReadDeadline(until)
	buf := make([]byte, 1500)
	for !enough() {
		n, from, err := p.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		proto, reply := 58, icmp.Type(ipv6.ICMPTypeEchoReply)
		if p.to.Is4() {
			proto, reply = 1, ipv4.ICMPTypeEchoReply
		}
		msg, err := icmp.ParseMessage(proto, buf[:n])
		echo, ok := msg.Body.(*icmp.Echo)
		if err != nil || !ok || msg.Type != reply || echo.ID != os.Getpid()&0xffff || from.(*net.IPAddr).IP.String() != p.to.String() {
			continue
		}
		p.mu.Lock()
		p.replied[echo.Seq] = time.Now()
		p.mu.Unlock()
	}
}

func (p *Pinger) replies() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.replied)
}

// Ping sends echo requests from a namespace, one every 100 ms, until one is answered or the context ends. It returns how
// long that took.
func Ping(ctx context.Context, from NS, to netip.Addr) (time.Duration, error) {
	p, err := NewPinger(from, to)
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	start := time.Now()
	var last error
	for ctx.Err() == nil {
		last = p.send() // no route yet is one more reason to try again
		p.receive(time.Now().Add(100*time.Millisecond), func() bool { return p.replies() > 0 })
		if p.replies() > 0 {
			return time.Since(start), nil
		}
	}
	return 0, errors.Join(fmt.Errorf("%s does not answer %s: %w", to, from.Name, context.Cause(ctx)), last)
}

// A Loss is what a [Probe] saw.
type Loss struct{ Sent, Lost int }

// ProbeInterval is the time between two requests of a [Probe].
const ProbeInterval = 20 * time.Millisecond

// Probe pings each ProbeInterval until stop is called, and then says how many requests were not answered within a second.
func Probe(from NS, to netip.Addr) (stop func() (Loss, error), err error) {
	p, err := NewPinger(from, to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() {
		ticker := time.NewTicker(ProbeInterval)
		defer ticker.Stop()
		for ctx.Err() == nil {
			_ = p.send() // counted as sent, and so as lost
			<-ticker.C
		}
	})
	loops.Go(func() {
		for ctx.Err() == nil {
			p.receive(time.Now().Add(50*time.Millisecond), func() bool { return ctx.Err() != nil })
		}
	})
	return func() (Loss, error) {
		cancel()
		loops.Wait()
		p.receive(time.Now().Add(time.Second), func() bool { return p.replies() >= p.sent })
		return Loss{Sent: p.sent, Lost: p.sent - p.replies()}, p.Close()
	}, nil
}

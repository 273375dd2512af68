package gobgp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/gaggle-cni/gaggle/bgp"
)

// checkPassword makes sure that the kernel takes the password for this peer (RFC 2385). The engine only warns when it does
// not, and would then run the session without.
func checkPassword(id bgp.PeerID, password bgp.Secret) error {
	if password == "" {
		return nil
	}
	family := unix.AF_INET6
	if id.Addr.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return errNoMD5(err)
	}
	defer unix.Close(fd)
	sig := md5sig(id.Addr, string(password))
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, sig); err != nil {
		return errNoMD5(err)
	}
	return nil
}

func md5sig(addr netip.Addr, password string) *unix.TCPMD5Sig {
	sig := &unix.TCPMD5Sig{Keylen: uint16(len(password))}
	copy(sig.Key[:], password)
	if addr.Is4() {
		sig.Addr.Family = unix.AF_INET
		ip := addr.As4()
		copy(sig.Addr.Data[2:], ip[:]) // after sin_port, of a struct sockaddr_in without its family
		return sig
	}
	sig.Addr.Family = unix.AF_INET6
	ip := addr.As16()
	copy(sig.Addr.Data[6:], ip[:]) // after sin6_port and sin6_flowinfo
	return sig
}

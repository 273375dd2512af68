package wire

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// L02: whatever a peer sends, with whatever number of descriptors, reading it ends with a request or an error, and no
// descriptor is left open.
func FuzzReadRequest(f *testing.F) {
	good, err := frame(Request{Protocol: Version, Command: "ADD", ContainerID: "c", Netns: "/run/netns/c", IfName: "eth0"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, uint8(1))
	f.Add(good[:3], uint8(0))
	f.Add(append(good, good...), uint8(2))
	f.Add([]byte{0, 0, 0, 2, '[', ']'}, uint8(4))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint8(9))
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = null.Close() })
	f.Fuzz(func(t *testing.T, data []byte, descriptors uint8) {
		near, far := socketPair(t)
		fds := make([]int, descriptors%12)
		for i := range fds {
			fds[i] = int(null.Fd())
		}
		before := openFiles(t)
		go func() { // ends with the socket
			var rights []byte
			if len(fds) > 0 {
				rights = unix.UnixRights(fds...)
			}
			_, _, _ = far.WriteMsgUnix(data, rights, nil)
			_ = far.CloseWrite()
		}()
		r, netns, err := ReadRequest(near)
		if err != nil && netns != nil {
			t.Errorf("%v, and a descriptor", err)
		}
		if err == nil && len(data) < 6 {
			t.Errorf("%q is the request %+v", data, r)
		}
		if netns != nil {
			_ = netns.Close()
		}
		if after := openFiles(t); after > before {
			t.Errorf("%d descriptors are open, before %d", after, before)
		}
	})
}

func socketPair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "socket")
		conn, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		conns[i] = conn.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

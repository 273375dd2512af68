// Command guest is the program that runs inside the test cluster where nothing of ours is under test: the first process of
// a node, which gives it file systems of its own, and in images the sandbox's pause, an HTTP server and its client. It is
// linked statically, so that an image needs nothing else, and uses only the standard library and x/sys.
package main

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

const usage = `usage: guest init NAME DIR | pause | serve ADDRESS | get URL`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	command := "pause" // what a runtime starts as a sandbox has no arguments
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case command == "init" && len(args) == 3:
		if err := prepare(args[1], args[2]); err != nil {
			return err
		}
		pause()
		return nil
	case command == "pause" && len(args) <= 1:
		pause()
		return nil
	case command == "serve" && len(args) == 2:
		go pauseThenExit()
		return serve(args[1])
	case command == "get" && len(args) == 2:
		return get(args[1], os.Stdout)
	}
	return fmt.Errorf("%s", usage)
}

func pauseThenExit() {
	pause()
	os.Exit(0)
}

// pause reaps orphans until a signal ends it: that is the whole work of the first process of a PID namespace.
func pause() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)
	for {
		reap()
		select {
		case <-end:
			return
		case <-child:
		}
	}
}

func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err != nil && err != unix.EINTR || err == nil && pid == 0 {
			return
		}
	}
}

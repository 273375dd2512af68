// Command ocitar makes a container image of static programs without a container engine: an archive that is an OCI image layout
// (for containerd, CRI-O, skopeo, podman and registries; any number of platforms) and that `docker load` takes as well (the
// first platform). The same files always make the same bytes. Engines are needed to build images that run something while they
// are built; ours is two files from scratch, and a machine that tests it need not have one. It stands in deploy, with the
// other things that turn programs into something to be deployed, and not in integration: what is shipped is made by it.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "ocitar:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, stderr io.Writer) error {
	var im image
	flags := flag.NewFlagSet("ocitar", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: ocitar -o FILE -name NAME [flags] PLATFORM=DIR ...\n\n"+
			"The files in DIR are the image for a PLATFORM such as linux/amd64.")
		flags.PrintDefaults()
	}
	out := flags.String("o", "", "write the archive to this `FILE`")
	flags.StringVar(&im.name, "name", "", "`NAME` of the image, with host and tag, as in localhost/gaggle:1")
	entrypoint := flags.String("entrypoint", "", "`WORDS` of the program to run and its fixed arguments")
	command := flags.String("cmd", "", "`WORDS` of arguments that a user replaces")
	flags.Func("label", "`KEY=VALUE`, may be repeated", im.addLabel)
	if err := flags.Parse(args); err != nil {
		return err
	}
	im.entrypoint, im.command = strings.Fields(*entrypoint), strings.Fields(*command)
	if *out == "" || im.name == "" || flags.NArg() == 0 {
		flags.Usage()
		return errors.New("-o, -name and at least one PLATFORM=DIR are needed")
	}
	for _, arg := range flags.Args() {
		platform, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: want PLATFORM=DIR, as in linux/amd64=bin", arg)
		}
		if err := im.addPlatform(platform, os.DirFS(dir)); err != nil {
			return err
		}
	}
	return writeFile(*out, im.write)
}

// writeFile writes a file that is there whole or not at all.
func writeFile(path string, write func(io.Writer) error) (err error) {
	aside := path + ".new"
	f, err := os.Create(aside)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(aside)
		}
	}()
	w := bufio.NewWriter(f)
	if err := errors.Join(write(w), w.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(aside, path)
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// serve answers every request with the host's name and the address that it sees the client under.
func serve(address string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	server := http.Server{
		Addr: address, ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%s saw %s\n", host, r.RemoteAddr)
		}),
	}
	fmt.Println("serving on", address)
	return server.ListenAndServe()
}

// get prints what a server answers.
func get(url string, w io.Writer) error {
	client := http.Client{Timeout: 3 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

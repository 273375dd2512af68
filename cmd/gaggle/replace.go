package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile leaves a file with the given content and mode under the path. Whoever looks finds the old one or the new one,
// whole: the new one is written beside it, under a name that no runtime loads, and renamed. So a program can be replaced while
// it runs. A file that is right already is not touched: a runtime reloads its configuration, and waits for the calls under
// way, at each sign of a change. What try, if not nil, says against the new file leaves the old one in place.
func replaceFile(path string, data []byte, mode fs.FileMode, try func(path string) error) (changed bool, err error) {
	if same, err := isSame(path, data, mode); err != nil || same {
		return false, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".new-*")
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	if try != nil {
		if err = try(f.Name()); err != nil {
			return false, err
		}
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return false, err
	}
	return true, nil
}

func isSame(path string, data []byte, mode fs.FileMode) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode() != mode { // another kind of file, too
		return false, nil
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data), err
}

package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"
)

// B13: a megabyte of configuration goes through; what is too much is refused by its length alone.
func TestSizes(t *testing.T) {
	var b bytes.Buffer
	big := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	if err := WriteResponse(&b, Response{Protocol: 1, Result: big}); err != nil {
		t.Fatal(err)
	}
	if r, err := ReadResponse(&b); err != nil || len(r.Result) != len(big) {
		t.Errorf("ReadResponse() = %d bytes, %v, want %d", len(r.Result), err, len(big))
	}
	if err := WriteResponse(&b, Response{Result: json.RawMessage(`"` + strings.Repeat("x", MaxMessage) + `"`)}); err == nil {
		t.Error("WriteResponse() of too much = nil, want an error")
	}
	if _, err := ReadResponse(bytes.NewReader(binary.BigEndian.AppendUint32(nil, 1<<31))); err == nil {
		t.Error("ReadResponse() of too much = nil, want an error")
	}
}

func TestCheckNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "0abc-_.": true, "": false, ".a": false, "-a": false, "a/b": false, "../x": false, "a b": false, "ä": false,
		strings.Repeat("a", 255): true, strings.Repeat("a", 256): false,
	} {
		if err := CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v, want ok %v", name, err, ok)
		}
	}
	for name, ok := range map[string]bool{
		"eth0": true, "": false, ".": false, "..": false, "a/b": false, "a:b": false, "a b": false, "a\nb": false,
		strings.Repeat("a", 15): true, strings.Repeat("a", 16): false,
	} {
		if err := CheckIfName(name); (err == nil) != ok {
			t.Errorf("CheckIfName(%q) = %v, want ok %v", name, err, ok)
		}
	}
}

// L02: whatever comes over the socket, reading it ends, and with an error or a message.
func FuzzReadResponse(f *testing.F) {
	var b bytes.Buffer
	_ = WriteResponse(&b, Response{Protocol: 1, Error: &Error{Code: 11, Msg: "m"}})
	f.Add(b.Bytes())
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = ReadResponse(bytes.NewReader(data)) })
}

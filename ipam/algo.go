package ipam

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// InstanceBits is how many host bits the fields of an [Algo] leave at least, to tell the pods of a workload apart.
const InstanceBits = 8

// The widths of fields, in bits.
const (
	defaultFieldBits = 16
	maxFieldBits     = 64
)

// ErrAlgo means that an algorithm cannot be understood, or does not fit a pool or a pod.
var ErrAlgo = errors.New("bad ip-algo")

// A FieldName says what a field is made from.
type FieldName string

// The fields.
const (
	FieldNamespace FieldName = "namespace"
	FieldApp       FieldName = "app"   // the stable name of the workload
	FieldImage     FieldName = "image" // of the first container, as in the pod's spec
	FieldPod       FieldName = "pod"
	FieldNode      FieldName = "node"
)

var fieldNames = []FieldName{FieldNamespace, FieldApp, FieldImage, FieldPod, FieldNode}

// A Field is a part of the host bits.
type Field struct {
	Name FieldName
	Bits int
}

// String returns "name/bits".
func (f Field) String() string { return fmt.Sprintf("%s/%d", f.Name, f.Bits) }

// An Algo composes the host bits of an IPv6 address from fields, the most significant first; what is left tells instances
// apart. The zero value has no fields.
type Algo []Field

// ParseAlgo reads an algorithm such as "namespace,app" or "namespace/16,app/16,image/8". A field without a width has 16 bits.
func ParseAlgo(text string) (Algo, error) {
	var a Algo
	for part := range strings.SplitSeq(text, ",") {
		name, width, sized := strings.Cut(strings.TrimSpace(part), "/")
		f := Field{FieldName(name), defaultFieldBits}
		if !slices.Contains(fieldNames, f.Name) {
			return nil, fmt.Errorf("%w: %q: want fields of namespace, app, image, pod and node, as in namespace/16,app/16", ErrAlgo, clip(part))
		}
		if slices.ContainsFunc(a, func(other Field) bool { return other.Name == f.Name }) {
			return nil, fmt.Errorf("%w: field %s is there twice", ErrAlgo, f.Name)
		}
		if sized {
			n, err := strconv.ParseUint(width, 10, 8)
			if err != nil || n < 1 || n > maxFieldBits {
				return nil, fmt.Errorf("%w: field %s: width %q: want 1 to %d bits", ErrAlgo, f.Name, clip(width), maxFieldBits)
			}
			f.Bits = int(n)
		}
		a = append(a, f)
	}
	return a, nil
}

func clip(s string) string { return s[:min(len(s), 50)] }

// String returns the canonical form, with every width.
func (a Algo) String() string {
	texts := make([]string, 0, len(a))
	for _, f := range a {
		texts = append(texts, f.String())
	}
	return strings.Join(texts, ",")
}

// Bits returns the width of all fields.
func (a Algo) Bits() (n int) {
	for _, f := range a {
		n += f.Bits
	}
	return n
}

// An Identity is what fields are made from. What is not known is empty.
type Identity struct{ Namespace, App, Image, Pod, Node string }

// Text returns what a field is made from.
func (id Identity) Text(name FieldName) string {
	return map[FieldName]string{
		FieldNamespace: id.Namespace, FieldApp: id.App, FieldImage: id.Image, FieldPod: id.Pod, FieldNode: id.Node,
	}[name]
}

// Fits tells why the fields do not fit a prefix.
func (a Algo) Fits(p netip.Prefix) error {
	if p.Addr().Is4() {
		return fmt.Errorf("%w: %s: fields are for IPv6", ErrAlgo, p)
	}
	if host := 128 - p.Bits(); a.Bits()+InstanceBits > host {
		return fmt.Errorf("%w: %s takes %d bits, and %d are for the instance; %s has %d", ErrAlgo, a, a.Bits(), InstanceBits, p, host)
	}
	return nil
}

// Prefix returns the part of a prefix in which the pods of an identity are. It is the same on every node as far as the
// prefix is.
func (a Algo) Prefix(p netip.Prefix, id Identity) (netip.Prefix, error) {
	if err := a.Fits(p); err != nil {
		return netip.Prefix{}, err
	}
	addr, at := p.Masked().Addr().As16(), p.Bits()
	for _, f := range a {
		text := id.Text(f.Name)
		if text == "" {
			return netip.Prefix{}, fmt.Errorf("%w: the pod's %s is not known", ErrAlgo, f.Name)
		}
		copyBits(&addr, at, fieldValue(f, text), f.Bits)
		at += f.Bits
	}
	return netip.PrefixFrom(netip.AddrFrom16(addr), at), nil
}

// A Value is a field of an address.
type Value struct {
	Field
	Bytes []byte // the field's bits, left-aligned
}

// String returns the bits in hexadecimal digits.
func (v Value) String() string { return hex.EncodeToString(v.Bytes)[:(v.Bits+3)/4] }

// Is reports whether the field was made from this text.
func (v Value) Is(text string) bool {
	var want [16]byte
	copyBits(&want, 0, fieldValue(v.Field, text), v.Bits)
	return slices.Equal(want[:len(v.Bytes)], v.Bytes)
}

// Decode reads the fields of an address that lies in the prefix.
func (a Algo) Decode(p netip.Prefix, addr netip.Addr) ([]Value, error) {
	if err := a.Fits(p); err != nil {
		return nil, err
	}
	if !p.Contains(addr) {
		return nil, fmt.Errorf("%w: %s is not in %s", ErrAlgo, addr, p)
	}
	from, at := addr.As16(), p.Bits()
	values := make([]Value, 0, len(a))
	for _, f := range a {
		var v [16]byte
		for i := range f.Bits {
			setBit(&v, i, bit(from[:], at+i))
		}
		values = append(values, Value{f, append([]byte(nil), v[:(f.Bits+7)/8]...)})
		at += f.Bits
	}
	return values, nil
}

// fieldValue returns at least as many bits as a field can have. An image that is named by its digest has that digest's; all
// else is hashed.
func fieldValue(f Field, text string) []byte {
	if f.Name == FieldImage {
		if _, digest, ok := strings.Cut(text, "@sha256:"); ok {
			if sum, err := hex.DecodeString(digest); err == nil && len(sum) == sha256.Size {
				return sum
			}
		}
	}
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

func copyBits(dst *[16]byte, at int, src []byte, n int) {
	for i := range n {
		setBit(dst, at+i, bit(src, i))
	}
}

func bit(b []byte, i int) bool { return b[i/8]&(0x80>>(i%8)) != 0 }

func setBit(b *[16]byte, i int, on bool) {
	b[i/8] &^= 0x80 >> (i % 8)
	if on {
		b[i/8] |= 0x80 >> (i % 8)
	}
}

// An Owner is the controller of a pod, as its owner reference names it; the zero value when there is none or it is not known.
type Owner struct {
	Kind, Name string
	// TemplateHash is the pod's label pod-template-hash.
	TemplateHash string
}

// AppName returns the stable name of a pod's workload. A Deployment stands behind a ReplicaSet whose name ends in the hash of
// the pod template; any other controller has its own name. Without a controller the shape of the pod's name has to do.
func AppName(pod string, owner Owner) string {
	if owner.Kind == "ReplicaSet" && owner.TemplateHash != "" {
		if name, ok := strings.CutSuffix(owner.Name, "-"+owner.TemplateHash); ok && name != "" {
			return name
		}
	}
	return cmp.Or(owner.Name, pod)
}

// AppNameOf guesses the workload from the pod's name alone, by the fixed shape of the suffixes that controllers add: five
// characters for a pod, six to ten for a ReplicaSet of a Deployment, a number for a StatefulSet. They are of an alphabet
// without vowels (k8s.io/apimachinery/pkg/util/rand), which is why words are seldom taken for them.
func AppNameOf(pod string) string {
	name, suffix := cutLast(pod)
	if name == "" {
		return pod
	}
	if _, err := strconv.ParseUint(suffix, 10, 31); err == nil && (len(suffix) < podSuffix || !generated(suffix)) {
		return name // of a StatefulSet
	}
	if len(suffix) != podSuffix || !generated(suffix) {
		return pod
	}
	if deployment, hash := cutLast(name); deployment != "" && len(hash) >= 6 && len(hash) <= 10 && generated(hash) {
		return deployment
	}
	return name
}

// podSuffix is the length of what a controller adds to its name for a pod.
const podSuffix = 5

func cutLast(name string) (before, after string) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

func generated(text string) bool { return strings.Trim(text, "bcdfghjklmnpqrstvwxz2456789") == "" }

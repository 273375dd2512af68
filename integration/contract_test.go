package integration

import (
	"bufio"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tests that show each row into contract.md")

// contractRows is how many rows each group of contract.md has.
var contractRows = map[byte]int{'A': 14, 'B': 29, 'C': 51, 'D': 20, 'E': 9, 'F': 13, 'G': 9, 'H': 13, 'I': 24, 'J': 10, 'M': 10}

// contractCases are the cases from the field that have a row, those of other kinds stand at their tests alone.
var contractCases = []string{
	"B-001", "B-003", "B-004", "B-005", "B-006", "B-008", "B-009", "B-010", "B-011", "B-012", "B-013", "B-015",
	"B-017", "B-018", "B-022", "B-028", "B-032", "B-035", "B-036", "B-041", "B-042", "B-044", "B-045", "B-046",
	"B-047", "B-048", "B-049", "B-097", "B-101", "B-103", "B-104", "B-105", "B-106", "B-109", "B-110", "B-116",
	"B-123", "B-124", "B-127", "B-128", "B-129", "B-132", "B-133", "B-134",
}

var (
	contractNumber = regexp.MustCompile(`\b(B-\d{3}|[A-JM]\d{2})\b`)
	testFunction   = regexp.MustCompile(`^func ((?:Test|Fuzz)\w+)\(`)
)

// Each row of the contract is shown by the tests that name it, or the table says why it is not.
func TestContract(t *testing.T) {
	shown, err := shownBy("..")
	must(t, err)
	data, err := os.ReadFile("contract.md")
	must(t, err)
	var out strings.Builder
	seen := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !contractNumber.MatchString(cells[1]) {
			out.WriteString(line)
			continue
		}
		number, have := strings.TrimSpace(cells[1]), strings.TrimSpace(cells[3])
		if seen[number] {
			t.Errorf("%s stands in the table twice", number)
		}
		seen[number] = true
		want := have
		if tests := shown[number]; len(tests) > 0 {
			want = "`" + strings.Join(tests, "`, `") + "`"
		} else if !strings.HasPrefix(have, "not here: ") || len(have) < len("not here: ")+10 {
			t.Errorf("%s: no test names it, and the table gives no reason", number)
		}
		if have != want && !*update {
			t.Errorf("%s: the table has %s, the tests that name it are %s; -update writes them", number, have, want)
		}
		fmt.Fprintf(&out, "|%s|%s| %s |\n", cells[1], cells[2], want)
	}
	for group, rows := range contractRows {
		for n := range rows {
			if number := fmt.Sprintf("%c%02d", group, n+1); !seen[number] {
				t.Errorf("%s is not in the table", number)
			}
		}
	}
	for _, number := range contractCases {
		if !seen[number] {
			t.Errorf("%s is not in the table", number)
		}
	}
	for number, tests := range shown { // a slip of the pen, or a row that somebody removed
		if !seen[number] && !strings.HasPrefix(number, "B-") {
			t.Errorf("%s is not in the table, but named by %v", number, tests)
		}
	}
	if *update {
		must(t, os.WriteFile("contract.md", []byte(out.String()), 0o644))
	}
}

// shownBy returns, for each number, the tests whose comments name it, as "package.Test".
func shownBy(root string) (map[string][]string, error) {
	found := make(map[string]map[string]bool)
	note := func(test, comment string) {
		for _, number := range contractNumber.FindAllString(comment, -1) {
			if found[number] == nil {
				found[number] = make(map[string]bool)
			}
			found[number][test] = true
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		dir, _ := filepath.Rel(root, filepath.Dir(path)) // below it
		switch {
		case strings.HasSuffix(path, "_test.go"):
			return readTests(path, filepath.ToSlash(dir), note)
		case strings.HasSuffix(path, ".txtar"):
			pkg, _, _ := strings.Cut(filepath.ToSlash(dir), "/testdata")
			return readScript(path, pkg+".TestScripts", note)
		}
		return nil
	})
	shown := make(map[string][]string)
	for number, tests := range found {
		shown[number] = slices.Sorted(maps.Keys(tests))
	}
	return shown, err
}

// readTests notes the comments before and in each test of a file.
func readTests(path, pkg string, note func(test, comment string)) error {
	return eachLine(path, func() func(string) {
		var before []string // the comment that stands before a function
		test := ""
		return func(line string) {
			if strings.HasPrefix(line, "//") {
				before = append(before, line)
				return
			}
			if strings.HasPrefix(line, "func ") {
				test = ""
				if m := testFunction.FindStringSubmatch(line); m != nil {
					test = pkg + "." + m[1]
					note(test, strings.Join(before, "\n"))
				}
			}
			before = nil
			if _, comment, ok := strings.Cut(line, "//"); ok && test != "" {
				note(test, comment)
			}
		}
	}())
}

// readScript notes the comments of a script.
func readScript(path, test string, note func(test, comment string)) error {
	return eachLine(path, func(line string) {
		if strings.HasPrefix(line, "#") {
			note(test, line)
		}
	})
}

func eachLine(path string, do func(line string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}

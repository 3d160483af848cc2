package bench

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// A Row is one line of the table. Mine and Rival are medians: of milliseconds, of bytes or of counts.
type Row struct {
	What  string  `json:"what"`
	VIPs  int     `json:"vips"`
	Unit  string  `json:"unit"`
	Mine  float64 `json:"rsagent"`
	Rival float64 `json:"rival"`
	Than  string  `json:"than"`
	Ratio float64 `json:"ratio"` // of Mine to Rival
	Goal  float64 `json:"goal"`  // the most that Ratio is to be
	Met   bool    `json:"met"`
}

// A Table is what `make bench` writes.
type Table struct {
	Machine string `json:"machine"`
	Rows    []Row  `json:"rows"`
}

//go:embed figures.json
var figures []byte

// Figures is the table of the run that README.md shows.
func Figures() (t Table, err error) {
	err = json.Unmarshal(figures, &t)
	return t, err
}

// value is a figure in a row's unit.
func (r Row) value(v float64) string {
	if r.Unit == "ms" {
		return fmt.Sprintf("%.2f ms", v)
	}
	return strings.TrimSpace(fmt.Sprintf("%.0f %s", v, r.Unit))
}

// Markdown is the table as README.md has it.
func (t Table) Markdown() string {
	var b strings.Builder
	b.WriteString("| median | VIPs | rsagent | beside it | | ratio | goal | |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range t.Rows {
		vips, missed := "", "missed"
		if r.VIPs > 0 {
			vips = fmt.Sprint(r.VIPs)
		}
		if r.Met {
			missed = ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.2f | %.2f | %s |\n", r.What, vips, r.value(r.Mine), r.value(r.Rival), r.Than, r.Ratio, r.Goal, missed)
	}
	return b.String()
}

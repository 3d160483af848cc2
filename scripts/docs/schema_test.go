package docs

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rsagent/realserver"
)

const answer = `{"version":1,"verb":"start","state":"up","changed":true,"vips":[{"address":"192.0.2.100","mode":"dr","device":"lo","state":"up"}],
"changes":[{"stage":"bind","item":"192.0.2.100/32 dev lo","from":"","to":"host","why":"the VIP","outcome":"done"}],
"findings":[{"level":"warning","code":"vip-on-nic","subject":"eth0","message":"it is","cure":""}],"error":null}`

// TestSchema: what is as it should be conforms, and nothing else. The outputs themselves are held to it in scripts/cases.
func TestSchema(t *testing.T) {
	if err := Conforms([]byte(answer)); err != nil {
		t.Error(err)
	}
	for old, change := range map[string]string{
		`"version":1`:                "\"version\":2",
		`"verb":"start"`:             `"verb":"go"`,
		`"state":"up","changed"`:     `"state":"good","changed"`,
		`"changed":true`:             `"changed":"yes"`,
		`"changed":true,`:            ``,
		`"error":null`:               `"error":{"code":2,"message":"x"}`,
		`"error":null}`:              `"error":null,"more":1}`,
		`"level":"warning"`:          `"level":"bad"`,
		`"code":"vip-on-nic"`:        `"code":"none-of-these"`,
		`"cure":""`:                  `"cure":null`,
		`"stage":"bind","item":"192`: `"item":"192`,
		`"vips":[{`:                  `"vips":[7,{`,
		`"vips":[{"address"`:         `"vips":[{"colour":"red","address"`,
		`"verb":"start",`:            `"verb":"status",`, // it has guards and tunnels
	} {
		bad := strings.Replace(answer, old, change, 1)
		if bad == answer || Conforms([]byte(bad)) == nil {
			t.Errorf("it conforms with %s", change)
		}
	}
	var s map[string]any
	if err := json.Unmarshal(Schema, &s); err != nil {
		t.Fatal(err)
	}
	if err := conforms([]byte(`{"maxItems": 3}`), []byte(`[]`)); err == nil {
		t.Error("a keyword that is not known is none that counts")
	}
	var listed, codes []string
	def := s["$defs"].(map[string]any)["finding"].(map[string]any)["properties"].(map[string]any)["code"].(map[string]any)
	for _, c := range def["enum"].([]any) {
		listed = append(listed, c.(string))
	}
	for _, c := range realserver.Codes {
		codes = append(codes, c.Code)
	}
	slices.Sort(listed)
	slices.Sort(codes)
	if diff := cmp.Diff(codes, listed); diff != "" {
		t.Errorf("the codes of the program and of the schema differ (-program +schema):\n%s", diff)
	}
}

package docs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Schema is the JSON Schema of what the program prints with --output json.
//
//go:embed schema.json
var Schema []byte

// Conforms says where a document is not as Schema has it.
func Conforms(document []byte) error { return conforms(Schema, document) }

func conforms(schema, document []byte) error {
	var s map[string]any
	if err := json.Unmarshal(schema, &s); err != nil {
		return fmt.Errorf("schema: %w", err)
	}
	var d any
	if err := json.Unmarshal(document, &d); err != nil {
		return err
	}
	return schemaOf{s}.judge(s, d, "$")
}

// schemaOf judges by the part of JSON Schema (draft 2020-12) that the schema makes use of; a keyword that it does not know
// is an error, so that none is there in vain.
type schemaOf struct{ root map[string]any }

func (r schemaOf) judge(s map[string]any, d any, at string) error {
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		if err := r.keyword(s, keyword, s[keyword], d, at); err != nil {
			return err
		}
	}
	return nil
}

func (r schemaOf) keyword(s map[string]any, keyword string, value, d any, at string) error {
	object, _ := d.(map[string]any)
	list, _ := d.([]any)
	switch keyword {
	case "$schema", "$id", "$defs", "title", "description", "then", "else":
	case "$ref":
		name := strings.TrimPrefix(value.(string), "#/$defs/")
		def, ok := r.root["$defs"].(map[string]any)[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s: no definition %s", at, name)
		}
		return r.judge(def, d, at)
	case "type":
		types, many := value.([]any)
		if !many {
			types = []any{value}
		}
		if !slices.ContainsFunc(types, func(t any) bool { return is(t.(string), d) }) {
			return fmt.Errorf("%s: %v is not of type %v", at, d, value)
		}
	case "const":
		if !reflect.DeepEqual(value, d) {
			return fmt.Errorf("%s: %v is not %v", at, d, value)
		}
	case "enum":
		if !slices.ContainsFunc(value.([]any), func(v any) bool { return reflect.DeepEqual(v, d) }) {
			return fmt.Errorf("%s: %v is none of %v", at, d, value)
		}
	case "minimum":
		if n, ok := d.(float64); ok && n < value.(float64) {
			return fmt.Errorf("%s: %v is less than %v", at, d, value)
		}
	case "required":
		for _, name := range value.([]any) {
			if _, there := object[name.(string)]; object != nil && !there {
				return fmt.Errorf("%s: there is no %s", at, name)
			}
		}
	case "properties":
		for name, of := range value.(map[string]any) {
			if v, there := object[name]; there {
				if err := r.judge(of.(map[string]any), v, at+"."+name); err != nil {
					return err
				}
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(map[string]any)
		for name := range object {
			if _, ok := known[name]; !ok && value == false {
				return fmt.Errorf("%s: %s is not in the schema", at, name)
			}
		}
	case "items":
		for i, v := range list {
			if err := r.judge(value.(map[string]any), v, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case "if":
		branch := "then"
		if r.judge(value.(map[string]any), d, at) != nil {
			branch = "else"
		}
		if b, ok := s[branch].(map[string]any); ok {
			return r.judge(b, d, at)
		}
	default:
		return fmt.Errorf("%s: the schema has a keyword that is not known here: %s", at, keyword)
	}
	return nil
}

func is(kind string, d any) bool {
	switch d := d.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && d == float64(int64(d))
	case []any:
		return kind == "array"
	}
	return kind == "object"
}

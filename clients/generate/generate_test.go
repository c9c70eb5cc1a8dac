package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatIsCommittedIsWhatIsGenerated(t *testing.T) {
	files, err := generate("..")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if string(got) != want {
			t.Errorf("%s is not what is generated now: run make clients\n%s", name, cmp.Diff(string(got), want))
		}
	}
	// A module that is no longer generated must be deleted.
	left, err := filepath.Glob("../python/src/berth_client/_sync/*.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if _, ok := files[name]; !ok && filepath.Base(name) != own {
			t.Errorf("%s is generated from nothing", name)
		}
	}
}

const small = `{
  "paths": {
    "/v1/kinds": {
      "get": {
        "operationId": "listKinds", "summary": "List the kinds",
        "responses": {"200": {"content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Kind"}}}}}}
      }
    },
    "/v1/things/{id}": {
      "get": {
        "operationId": "getThing", "summary": "Read one",
        "parameters": [
          {"name": "id", "in": "path", "required": true, "schema": {"type": "string"}},
          {"name": "from", "in": "query", "schema": {"type": "string", "format": "date-time"}},
          {"name": "follow", "in": "query", "schema": {"type": "boolean"}}
        ],
        "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}}
      },
      "patch": {
        "operationId": "patchThing", "summary": "Change one",
        "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/PatchThing"}}}},
        "responses": {"204": {"description": "done"}}
      }
    }
  },
  "webhooks": {
    "thing.made": {"post": {"requestBody": {"content": {"application/json": {"schema": {"allOf": [
      {"$ref": "#/components/schemas/Event"}, {"properties": {"data": {"$ref": "#/components/schemas/Made"}}}
    ]}}}}}}
  },
  "components": {"schemas": {
    "Event": {"type": "object", "required": ["data"], "properties": {"data": {"type": "object"}}},
    "Made": {"type": "object", "required": ["at"], "properties": {"at": {"type": "string", "format": "date-time"}}},
    "Thing": {
      "type": "object", "required": ["at", "of", "bytes"],
      "properties": {
        "of": {"anyOf": [{"$ref": "#/components/schemas/Kind"}, {"type": "null"}]},
        "at": {"type": "string", "format": "date-time", "description": "when, \"roughly\""},
        "bytes": {"type": "string", "contentEncoding": "base64"},
        "next": {"type": ["null", "array"], "items": {"$ref": "#/components/schemas/Thing"}},
        "names": {"type": "object", "additionalProperties": {"type": "string"}},
        "2xx": {"type": "integer"}
      }
    },
    "Kind": {"type": "string", "enum": ["a", "b"]},
    "PatchThing": {"type": "object", "properties": {"ttl": {"type": ["integer", "null"]}}}
  }}
}`

func TestWhatIsMadeOfADocument(t *testing.T) {
	a, err := read([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"times are parsed":             {pythonModels(a), `at=datetime.fromisoformat(raw["at"])`},
		"bytes are decoded":            {pythonModels(a), `bytes=b64decode(raw["bytes"])`},
		"what is absent is None":       {pythonModels(a), `next=None if (v := raw.get("next")) is None else [Thing.from_json(e) for e in v]`},
		"null and absent are two":      {pythonModels(a), `ttl: int | Unset | None = UNSET`},
		"a quote does not end a doc":   {pythonModels(a), `"""when, "roughly"."""`},
		"words of the language":        {pythonOperations(a), `from_: datetime | None = None`},
		"their name in the URL":        {pythonOperations(a), `"from": from_`},
		"segments are escaped":         {pythonOperations(a), `path=f"/v1/things/{_q(id)}"`},
		"words are as they are":        {pythonOperations(a), `decode=lambda raw: raw,`},
		"events are received":          {pythonModels(a), `def from_json(cls, raw: dict[str, Any]) -> Event:`},
		"and so is their data":         {pythonModels(a), `def from_json(cls, raw: dict[str, Any]) -> Made:`},
		"following is another call":    {pythonOperations(a), `def follow_get_thing(`},
		"names begin with a letter":    {pythonModels(a), `field_2xx=raw.get("2xx")`},
		"TypeScript: or are quoted":    {typescriptModels(a), `"2xx"?: number;`},
		"TypeScript: what may be null": {typescriptModels(a), `of: Kind | null;`},
		"TypeScript: what may be left": {typescriptModels(a), `names?: Record<string, string>;`},
		"TypeScript: no answer":        {typescriptOperations(a), `patchThing(id: string, body: m.PatchThing): Nothing {`},
		"TypeScript: escaped":          {typescriptOperations(a), "path: `/v1/things/${q(id)}`"},
	} {
		if !strings.Contains(c.text, c.want) {
			t.Errorf("%s: %q is not in\n%s", name, c.want, c.text)
		}
	}
}

func TestNamesOfParameters(t *testing.T) {
	a, err := read([]byte(`{"paths": {"/v1/{async}/{item-2}": {"delete": {
		"operationId": "drop",
		"parameters": [
			{"name": "async", "in": "path", "required": true, "schema": {"type": "string"}},
			{"name": "item-2", "in": "path", "required": true, "schema": {"type": "string"}}
		],
		"responses": {"204": {}}
	}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		pythonOperations(a):     `path=f"/v1/{_q(async_)}/{_q(item_2)}"`,
		typescriptOperations(a): "path: `/v1/${q(async)}/${q(item2)}`",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %s in\n%s", want, text)
		}
	}
}

func TestWhatNoClientCanBeMadeOf(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON":             `{`,
		"an unknown type":     `{"components": {"schemas": {"T": {"properties": {"a": {"type": "tuple"}}}}}}`,
		"a choice of types":   `{"components": {"schemas": {"T": {"properties": {"a": {"type": ["string", "integer"]}}}}}}`,
		"another document":    `{"components": {"schemas": {"T": {"properties": {"a": {"$ref": "other.json#/T"}}}}}}`,
		"a name with a space": `{"components": {"schemas": {"T": {"properties": {"a b": {"type": "string"}}}}}}`,
		"no name":             `{"paths": {"/{}": {"get": {"parameters": [{"name": "", "in": "path", "schema": {"type": "string"}}]}}}}`,
		"an unknown answer":   `{"paths": {"/": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"type": "tuple"}}}}}}}}}`,
	} {
		if _, err := read([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWaitingIsTakenOut(t *testing.T) {
	const with = `"""Doc."""
from websockets.asyncio.client import connect
from collections.abc import AsyncIterator
from .._async._io import sleep

class AsyncThing:
    async def __aenter__(self) -> AsyncThing:
        async with self.lock:
            await sleep(1)
        return self

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for x in self.y.aiter_bytes():
            yield await x.aread()
`
	const without = `# Generated from _async/thing.py by ` + "`make clients`" + `. Do not edit.
"""Doc."""
from websockets.sync.client import connect
from collections.abc import Iterator
from .._sync._io import sleep

class Thing:
    def __enter__(self) -> Thing:
        with self.lock:
            sleep(1)
        return self

    def __iter__(self) -> Iterator[bytes]:
        for x in self.y.iter_bytes():
            yield x.read()
`
	if diff := cmp.Diff(without, sync("thing.py", with)); diff != "" {
		t.Error(diff)
	}
}

func TestNames(t *testing.T) {
	for camelCase, snakeCase := range map[string]string{"createSandbox": "create_sandbox", "me": "me", "listDir": "list_dir"} {
		if got := snake(camelCase); got != snakeCase {
			t.Errorf("snake(%q) = %q", camelCase, got)
		}
		if got := camel(snakeCase); got != camelCase {
			t.Errorf("camel(%q) = %q", snakeCase, got)
		}
	}
	if got, want := wrap("one two three", "# ", 9), "# one two\n# three\n"; got != want {
		t.Errorf("wrap: %q", got)
	}
}

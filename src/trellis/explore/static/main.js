// The page that `trellis explore` serves.

import { mount } from "./app.js";
import { Client, overHTTP } from "./api.js";
import { AddressBar } from "./router.js";

mount(document.getElementById("explorer"), new Client(null, overHTTP), new AddressBar(), { focus: true, title: true });

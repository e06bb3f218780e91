// Pictures for the next message: dropped, pasted or chosen. They stay in the page until it is sent.
const pictures = { waiting: [] };

function readPicture(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function pictureOf(url, className) {
  const image = make("img", className);
  image.src = url;
  image.alt = "Picture in this message";
  return image;
}

async function addPictures(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/")) {
      setText(byId("chat-status"), `${file.name} is no image.`);
      continue;
    }
    try {
      pictures.waiting.push(await readPicture(file));
    } catch (error) {
      setText(byId("chat-status"), `${file.name} cannot be read: ${error.message}`);
    }
  }
  showPictures();
}

function showPictures() {
  const list = byId("chat-pictures");
  list.hidden = !pictures.waiting.length;
  list.replaceChildren(...pictures.waiting.map((url, index) => {
    const item = make("li");
    const remove = make("button", "quiet", "Remove");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove picture ${index + 1}`);
    remove.addEventListener("click", () => {
      pictures.waiting.splice(index, 1);
      showPictures();
      byId("chat-input").focus();
    });
    item.append(pictureOf(url, "thumbnail"), remove);
    return item;
  }));
}

// The pictures that go with a message; none wait any more.
function takePictures() {
  const taken = pictures.waiting;
  pictures.waiting = [];
  showPictures();
  return taken;
}

function giveBackPictures(taken) {
  pictures.waiting = [...taken, ...pictures.waiting];
  showPictures();
}

// A message's content: a text, or parts where there are pictures.
function contentOf(text, taken) {
  if (!taken.length) return text;
  const parts = taken.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function userMessage(text, taken) {
  const box = make("div", "message user");
  box.append(...taken.map((url) => pictureOf(url, "picture")));
  if (text) box.append(make("div", "text", text));
  return box;
}

function setUpPictures() {
  const form = byId("chat-form");
  const hasFiles = (event) => Array.from(event.dataTransfer?.types ?? []).includes("Files");
  for (const name of ["dragenter", "dragover"]) {
    form.addEventListener(name, (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      form.classList.add("drop");
    });
  }
  for (const name of ["dragleave", "drop"]) form.addEventListener(name, () => form.classList.remove("drop"));
  form.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    addPictures(event.dataTransfer.files);
  });
  byId("chat-input").addEventListener("paste", (event) => {
    const files = Array.from(event.clipboardData?.files ?? []);
    if (!files.length) return;
    event.preventDefault();
    addPictures(files);
  });
  byId("chat-attach").addEventListener("click", () => byId("chat-file").click());
  byId("chat-file").addEventListener("change", (event) => {
    addPictures(event.target.files).then(() => (event.target.value = ""));
  });
}

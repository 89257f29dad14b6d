import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from shared import Net, digits


def main():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(7)
    train = digits(0, 1003)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, 6):
        total = 0.0
        for images, classes in loader:
            images, classes = images.to(device), classes.to(device)
            loss = cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(classes)
        print(f"epoch {epoch}  train loss {total / len(train):.6f}")
    torch.save(model.state_dict(), "single.pt")


if __name__ == "__main__":
    main()
